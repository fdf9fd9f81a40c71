// What happened when, as a Chrome trace: one file for each rank, one row for each tensor.
//
// A tensor has two phases: from its submission until all ranks agreed on it ("agree"), and while it is carried out. The
// file is an array that is never closed, which its viewers accept, written by whole lines as soon as they are known: so
// it can be read when the process was killed.
#ifndef SPARK_HVD_SRC_TIMELINE_H_
#define SPARK_HVD_SRC_TIMELINE_H_

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "status.h"
#include "types.h"

namespace spark_hvd {

class Timeline {
 public:
  explicit Timeline(int32_t rank) : rank_(rank) {}
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Opens `path`, replacing what is there. Fails when one is open already, or when it cannot be written.
  Status Start(const std::string& path);
  void Stop();

  // The collective `what` of these entries was carried out between two times. Entries without a handle are left out.
  void Add(const std::vector<Entry>& entries, const char* what, TimePoint begin, TimePoint end);
  // Something that concerns all of a process set.
  void Mark(const std::string& what, TimePoint now);

 private:
  int Row(const std::string& tensor, std::string* lines);
  void AddPhase(const char* what, int row, TimePoint begin, TimePoint end, std::string* lines) const;
  void Write(const std::string& lines);

  const int32_t rank_;
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  int file_ = -1;
  TimePoint started_{};
  std::unordered_map<std::string, int> rows_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TIMELINE_H_
