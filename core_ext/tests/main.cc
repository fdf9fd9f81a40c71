// Runs every test, or those whose name contains the first argument. Exit code: number of failures.
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>

#include "check.h"

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  int failed = 0, ran = 0;
  for (const auto& test : spark_hvd::test::AllTests()) {
    if (test.name.find(wanted) == std::string::npos) continue;
    ++ran;
    const auto begin = std::chrono::steady_clock::now();
    std::string result = "ok";
    try {
      test.body();
    } catch (const std::exception& e) {
      result = std::string("FAILED ") + e.what();
      ++failed;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%-60s %.2f s  %s\n", test.name.c_str(), seconds, result.c_str());
    std::fflush(stdout);
  }
  std::printf("%d tests, %d failed\n", ran, failed);
  return ran == 0 ? 1 : failed;
}
