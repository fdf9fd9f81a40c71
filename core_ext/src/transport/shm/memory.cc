#include "transport/shm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace spark_hvd {
namespace {

constexpr char kName[] = "spark_hvd";
// Of the large pages that most processors and kernels have. Their tables are short: reading 64 MiB in pages of 4 KiB
// spends a good part of the time on looking up where they lie, twice as long again in a virtual machine.
constexpr int64_t kLargePage = 2 << 20;

// What the kernel believes it could still give, for messages; -1 if it does not say.
int64_t AvailableBytes() {
  FILE* file = fopen("/proc/meminfo", "re");
  if (file == nullptr) return -1;
  char line[128];
  long long kib = -1;
  while (fgets(line, sizeof line, file) != nullptr && sscanf(line, "MemAvailable: %lld kB", &kib) != 1) {
  }
  fclose(file);
  return kib < 0 ? -1 : kib * 1024;
}

Status NoMemory(int64_t bytes, const std::string& reason) {
  const int64_t available = AvailableBytes();
  return Status::Error(HVD_UNAVAILABLE, "shared memory: " + std::to_string(bytes >> 10) + " KiB needed, " +
                                            (available < 0 ? "unknown" : std::to_string(available >> 10) + " KiB") +
                                            " available on this host: " + reason);
}

// After this a page cannot be missing any more.
int Reserve(int descriptor, int64_t bytes) {
  for (;;) {
    const int error = posix_fallocate(descriptor, 0, bytes);
    if (error != EINTR) return error;
  }
}

// Large pages, where the system gives them: at the first touch on request, else afterwards on demand. Without them all
// works, only slower.
void AskForLargePages(char* data, int64_t bytes) {
  if (bytes < kLargePage || madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE) != 0) return;
  madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE);
}

void CollapseToLargePages(char* data, int64_t bytes) {
  if (bytes >= kLargePage) madvise(data, static_cast<size_t>(bytes / kLargePage * kLargePage), MADV_COLLAPSE);
}

}  // namespace

int64_t WholePages(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  Release();
  data_ = std::exchange(other.data_, nullptr);
  descriptor_ = std::exchange(other.descriptor_, -1);
  address_ = std::exchange(other.address_, {});
  return *this;
}

Status SharedMemory::Create(int64_t bytes, SharedMemory* out) {
  SharedMemory memory;
  bytes = WholePages(bytes > 0 ? bytes : 1);
  rlimit limit{};
  // Beyond this limit the kernel sends a signal that ends the process.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    return NoMemory(
        bytes, "files of this process are limited to " + std::to_string(limit.rlim_cur >> 10) + " KiB (ulimit -f)");
  }
  memory.descriptor_ = memfd_create(kName, MFD_CLOEXEC);
  if (memory.descriptor_ < 0) return NoMemory(bytes, std::string("memfd_create: ") + strerror(errno));
  struct stat about{};
  if (ftruncate(memory.descriptor_, bytes) != 0 || fstat(memory.descriptor_, &about) != 0) {
    return NoMemory(bytes, std::string("memfd: ") + strerror(errno));
  }
  memory.address_ = {getpid(), memory.descriptor_, static_cast<uint64_t>(about.st_ino), bytes};
  Status status = memory.Map();
  if (!status.ok()) return status;
  AskForLargePages(memory.data_, bytes);
  const int error = Reserve(memory.descriptor_, bytes);
  if (error != 0) return NoMemory(bytes, std::string("posix_fallocate: ") + strerror(error));
  CollapseToLargePages(memory.data_, bytes);
  memory.FaultIn();
  *out = std::move(memory);
  return status;
}

Status SharedMemory::Open(const MemoryAddress& address, SharedMemory* out) {
  const std::string path = "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.descriptor);
  const auto refuse = [&](const std::string& why) { return Status::Error(HVD_UNAVAILABLE, path + ": " + why); };
  // Opening what lies there may have effects if it is something else: a device, a pipe.
  char target[64] = {};
  if (readlink(path.c_str(), target, sizeof target - 1) < 0) return refuse(strerror(errno));
  if (strncmp(target, (std::string("/memfd:") + kName).c_str(), 7 + sizeof kName - 1) != 0) {
    return refuse("not memory of spark_hvd");
  }
  SharedMemory memory;
  memory.descriptor_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (memory.descriptor_ < 0) return refuse(strerror(errno));
  struct stat about{};
  if (fstat(memory.descriptor_, &about) != 0) return refuse(strerror(errno));
  if (static_cast<uint64_t>(about.st_ino) != address.inode || about.st_size != address.bytes) {
    return refuse("other memory than the peer spoke of");
  }
  memory.address_ = address;
  Status status = memory.Map();
  if (!status.ok()) return status;
  memory.CloseDescriptor();
  CollapseToLargePages(memory.data_, memory.bytes());
  memory.FaultIn();
  *out = std::move(memory);
  return status;
}

Status SharedMemory::Map() {
  const auto bytes = static_cast<size_t>(address_.bytes);
  const auto fail = [this] { return NoMemory(address_.bytes, std::string("mmap: ") + strerror(errno)); };
  // A large page is mapped as one only where the address is a multiple of its size, so more is asked for at first.
  const size_t spare = address_.bytes < kLargePage ? 0 : static_cast<size_t>(kLargePage);
  void* found = mmap(nullptr, bytes + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return fail();
  char* begin = static_cast<char*>(found);
  const size_t before = spare == 0 ? 0 : (spare - reinterpret_cast<uintptr_t>(begin) % spare) % spare;
  if (before > 0) munmap(begin, before);
  if (spare > before) munmap(begin + before + bytes, spare - before);
  data_ = begin + before;
  if (mmap(data_, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor_, 0) == MAP_FAILED) return fail();
  return Status::Ok();
}

void SharedMemory::FaultIn() { madvise(data_, static_cast<size_t>(address_.bytes), MADV_POPULATE_WRITE); }

void SharedMemory::HideFromChildren() { madvise(data_, static_cast<size_t>(address_.bytes), MADV_DONTFORK); }

void SharedMemory::CloseDescriptor() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

void SharedMemory::Release() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(address_.bytes));
  data_ = nullptr;
  CloseDescriptor();
}

}  // namespace spark_hvd
