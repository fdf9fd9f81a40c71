#include "timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace spark_hvd {
namespace {

// As JSON text wants it.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string Microseconds(Clock::duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

}  // namespace

Timeline::~Timeline() { Stop(); }

Status Timeline::Start(const std::string& path) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (file_ >= 0) {
    return Status::Error(HVD_INVALID_ARGUMENT, "a timeline is being written already; stop that one first");
  }
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) {
    return Status::Error(HVD_INVALID_ARGUMENT,
                         "the timeline cannot be written to " + path + ": " + std::strerror(errno));
  }
  rows_.clear();
  started_ = Clock::now();
  const std::string rank = std::to_string(rank_);
  Write("[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" + rank + ",\"args\":{\"name\":\"rank " + rank +
        "\"}},\n");
  on_ = true;
  return Status::Ok();
}

void Timeline::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  on_ = false;
  if (file_ >= 0) close(file_);
  file_ = -1;
}

void Timeline::Add(const std::vector<Entry>& entries, const char* what, TimePoint begin, TimePoint end) {
  if (!on_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (begin < started_) return;
  std::string lines;
  for (const Entry& entry : entries) {
    if (entry.handle == 0) continue;
    const int row = Row(entry.request.name, &lines);
    AddPhase("agree", row, std::max(entry.submitted, started_), begin, &lines);
    AddPhase(what, row, begin, end, &lines);
  }
  Write(lines);
}

void Timeline::Mark(const std::string& what, TimePoint now) {
  if (!on_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  Write("{\"name\":" + Quoted(what) + ",\"ph\":\"i\",\"s\":\"p\",\"pid\":" + std::to_string(rank_) +
        ",\"tid\":0,\"ts\":" + Microseconds(now - started_) + "},\n");
}

int Timeline::Row(const std::string& tensor, std::string* lines) {
  const auto [found, is_new] = rows_.try_emplace(tensor, static_cast<int>(rows_.size()) + 1);
  if (is_new) {
    *lines += "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":" + std::to_string(rank_) +
              ",\"tid\":" + std::to_string(found->second) + ",\"args\":{\"name\":" + Quoted(tensor) + "}},\n";
  }
  return found->second;
}

void Timeline::AddPhase(const char* what, int row, TimePoint begin, TimePoint end, std::string* lines) const {
  *lines += std::string("{\"name\":\"") + what + "\",\"ph\":\"X\",\"pid\":" + std::to_string(rank_) +
            ",\"tid\":" + std::to_string(row) + ",\"ts\":" + Microseconds(begin - started_) +
            ",\"dur\":" + Microseconds(end - begin) + "},\n";
}

void Timeline::Write(const std::string& lines) {
  size_t at = 0;
  while (file_ >= 0 && at < lines.size()) {
    const ssize_t written = write(file_, lines.data() + at, lines.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {  // a full disk ends the timeline, not the training
      on_ = false;
      return;
    }
    at += static_cast<size_t>(written);
  }
}

}  // namespace spark_hvd
