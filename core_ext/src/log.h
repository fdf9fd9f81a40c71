// Lines for people on standard error, one write each, so that lines of several ranks do not mix.
#ifndef SPARK_HVD_SRC_LOG_H_
#define SPARK_HVD_SRC_LOG_H_

#include <string>

namespace spark_hvd {

enum class LogLevel : int { kTrace = 0, kDebug = 1, kInfo = 2, kWarning = 3, kError = 4, kFatal = 5 };

class Log {
 public:
  Log(int rank, int lowest) : rank_(rank), lowest_(lowest) {}
  void operator()(LogLevel level, const std::string& text) const;

 private:
  int rank_;
  int lowest_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_LOG_H_
