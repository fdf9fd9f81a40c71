// A test is a function with a name; the first CHECK that fails ends it. Nothing more is needed here.
#ifndef SPARK_HVD_TESTS_CHECK_H_
#define SPARK_HVD_TESTS_CHECK_H_

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace spark_hvd::test {

struct Test {
  std::string name;
  std::function<void()> body;
};

inline std::vector<Test>& AllTests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, std::function<void()> body) { AllTests().push_back({name, std::move(body)}); }
};

[[noreturn]] inline void FailCheck(const char* file, int line, const std::string& text) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

template <typename A, typename B>
void CheckEqual(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " is not " << b;
  FailCheck(file, line, out.str());
}

}  // namespace spark_hvd::test

#define TEST(name)                                                             \
  static void name();                                                          \
  static const spark_hvd::test::Registration registration_##name{#name, name}; \
  static void name()

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) spark_hvd::test::FailCheck(__FILE__, __LINE__, "not " #condition); \
  } while (false)

#define CHECK_EQUAL(a, b) spark_hvd::test::CheckEqual((a), (b), #a, __FILE__, __LINE__)

#define CHECK_OK(status)                                                                              \
  do {                                                                                                \
    const spark_hvd::Status checked_status = (status);                                                \
    if (!checked_status.ok()) spark_hvd::test::FailCheck(__FILE__, __LINE__, checked_status.message); \
  } while (false)

#define CHECK_CONTAINS(text, part)                                                                                \
  do {                                                                                                            \
    const std::string checked_text = (text);                                                                      \
    if (checked_text.find(part) == std::string::npos) {                                                           \
      spark_hvd::test::FailCheck(__FILE__, __LINE__, "'" + checked_text + "' does not contain '" + (part) + "'"); \
    }                                                                                                             \
  } while (false)

#endif  // SPARK_HVD_TESTS_CHECK_H_
