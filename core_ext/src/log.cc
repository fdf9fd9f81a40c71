#include "log.h"

#include <unistd.h>

namespace spark_hvd {

void Log::operator()(LogLevel level, const std::string& text) const {
  static const char* const kNames[] = {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"};
  const int number = static_cast<int>(level);
  if (number < lowest_) return;
  const std::string line =
      "[spark_hvd core, rank " + std::to_string(rank_) + "] " + kNames[number] + ": " + text + "\n";
  // Nothing can be done about a log that cannot be written.
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

}  // namespace spark_hvd
