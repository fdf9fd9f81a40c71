#include "thread_link.h"

#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "transport/alone/alone.h"
#include "transport/link_control_plane.h"

namespace spark_hvd::test {

struct Post {
  const char* data;
  int64_t bytes;
  Link::Request request;  // the sender's
};

struct Want {
  char* data;
  int64_t bytes;
  Link::Request request;  // the receiver's
};

// All messages of a world, under one lock.
class Hub {
 public:
  explicit Hub(int size) : size(size), deaf(static_cast<size_t>(size), 0) {}

  struct Channel {
    std::deque<Post> posts;
    std::deque<Want> wants;
  };

  // Matches what can be matched between two ranks, in order.
  void Match(int from, int to, int tag) {
    Channel& channel = channels[{from, to, tag}];
    while (!channel.posts.empty() && !channel.wants.empty()) {
      const Post post = channel.posts.front();
      const Want want = channel.wants.front();
      if (post.bytes != want.bytes) throw std::logic_error("a message of another length than its receiver wants");
      if (post.bytes > 0) std::memcpy(want.data, post.data, static_cast<size_t>(post.bytes));
      finished.insert({post.request, true});
      finished.insert({want.request, true});
      channel.posts.pop_front();
      channel.wants.pop_front();
    }
  }

  const int size;
  std::mutex mutex;
  std::map<std::tuple<int, int, int>, Channel> channels;  // (from, to, tag)
  std::map<Link::Request, bool> finished;
  std::vector<char> deaf;
  Link::Request next = 1;
};

class ThreadLink : public Link {
 public:
  ThreadLink(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_->size; }

  Status Send(int peer, int32_t tag, const void* data, int64_t bytes, Request* request) override {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    *request = hub_->next++;
    if (!Lost(peer)) {
      hub_->channels[{rank_, peer, tag}].posts.push_back({static_cast<const char*>(data), bytes, *request});
      hub_->Match(rank_, peer, tag);
    }
    return Status::Ok();
  }

  Status Receive(int peer, int32_t tag, void* data, int64_t bytes, Request* request) override {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    *request = hub_->next++;
    if (!Lost(peer)) {
      hub_->channels[{peer, rank_, tag}].wants.push_back({static_cast<char*>(data), bytes, *request});
      hub_->Match(peer, rank_, tag);
    }
    return Status::Ok();
  }

  Status Test(Request* request, bool* done) override {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    *done = hub_->finished.erase(*request) > 0;
    return Status::Ok();
  }

  Status Probe(int32_t tag, bool* found, int* peer, int64_t* bytes) override {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    *found = false;
    for (int from = 0; from < hub_->size && !*found; ++from) {
      auto channel = hub_->channels.find({from, rank_, tag});
      if (channel == hub_->channels.end() || channel->second.posts.empty() || Lost(from)) continue;
      *found = true;
      *peer = from;
      *bytes = channel->second.posts.front().bytes;
    }
    return Status::Ok();
  }

  void Cancel(Request* request) override {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    for (auto& item : hub_->channels) {
      auto& wants = item.second.wants;
      for (auto it = wants.begin(); it != wants.end();) it = it->request == *request ? wants.erase(it) : std::next(it);
    }
  }

  void Close() override {}

  void Deafen() {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    hub_->deaf[static_cast<size_t>(rank_)] = 1;
    for (auto& item : hub_->channels) {
      const auto [from, to, tag] = item.first;
      if (from == rank_ || to == rank_) item.second = {};
    }
  }

 private:
  bool Lost(int peer) const {
    return hub_->deaf[static_cast<size_t>(rank_)] != 0 || hub_->deaf[static_cast<size_t>(peer)] != 0;
  }

  std::shared_ptr<Hub> hub_;
  const int rank_;
};

std::vector<std::shared_ptr<Link>> MakeLinks(int size) {
  auto hub = std::make_shared<Hub>(size);
  std::vector<std::shared_ptr<Link>> links;
  for (int rank = 0; rank < size; ++rank) links.push_back(std::make_shared<ThreadLink>(hub, rank));
  return links;
}

void MakeDeaf(const std::shared_ptr<Link>& link) { static_cast<ThreadLink*>(link.get())->Deafen(); }

void RunRanks(int size, const std::function<void(int)>& body) {
  std::mutex mutex;
  std::string failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& e) {
        std::lock_guard<std::mutex> lock(mutex);
        if (failure.empty()) failure = "rank " + std::to_string(rank) + ": " + e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) throw std::runtime_error(failure);
}

EngineConfig World::QuietConfig() {
  EngineConfig config;
  config.set.coordinator.comm_timeout = 30;
  config.log_level = static_cast<int>(LogLevel::kFatal);
  return config;
}

World::World(int size, EngineConfig config, DirectOptions options) : links_(MakeLinks(size)), engines_(links_.size()) {
  RunRanks(size, [&](int rank) {
    const auto& link = links_[static_cast<size_t>(rank)];
    std::vector<std::unique_ptr<Provider>> providers;
    providers.push_back(std::make_unique<AloneProvider>());
    providers.push_back(std::make_unique<DirectProvider>(link, options));
    CHECK_OK(Engine::Start(config, std::make_unique<LinkControlPlane>(link), std::move(providers),
                           &engines_[static_cast<size_t>(rank)]));
  });
}

World::~World() {
  for (const auto& engine : engines_) engine->Shutdown(0, true);
}

Entry World::Named(Kind kind, const std::string& name) {
  Entry entry;
  entry.request.kind = kind;
  entry.request.name = name;
  return entry;
}

Entry World::Floats(Kind kind, const std::string& name, const std::vector<float>& in, std::vector<float>* out) {
  Entry entry = Named(kind, name);
  entry.request.shape = {static_cast<int64_t>(in.size())};
  entry.input = in.data();
  if (out != nullptr) {
    out->resize(in.size());
    entry.output = out->data();
  }
  return entry;
}

int64_t World::Submit(int rank, std::vector<Entry> entries, int32_t set) {
  int64_t handle = 0;
  const Status status = (*this)[rank].Submit(set, std::move(entries), &handle);
  if (!status.ok()) throw std::runtime_error(status.message);
  return handle;
}

int64_t World::Submit(int rank, Entry entry, int32_t set) {
  std::vector<Entry> entries;
  entries.push_back(std::move(entry));
  return Submit(rank, std::move(entries), set);
}

int64_t World::Allreduce(int rank, const std::string& name, const std::vector<float>& in, std::vector<float>* out,
                         int32_t op, double prescale, double postscale) {
  Entry entry = Floats(Kind::kAllreduce, name, in, out);
  entry.request.op = op;
  entry.request.scaling = {prescale, postscale, op == HVD_AVERAGE};
  return Submit(rank, std::move(entry));
}

int64_t World::Broadcast(int rank, const std::string& name, std::vector<float>* data, int root) {
  Entry entry = Floats(Kind::kBroadcast, name, *data, data);
  entry.request.root = root;
  return Submit(rank, std::move(entry));
}

int64_t World::Barrier(int rank, const std::string& name) { return Submit(rank, Named(Kind::kBarrier, name)); }

Status World::Wait(int rank, int64_t handle, double timeout) { return WaitOutcome(rank, handle, timeout).status; }

Outcome World::WaitOutcome(int rank, int64_t handle, double timeout) { return (*this)[rank].Wait(handle, timeout); }

Status World::Run(int rank, Entry entry, Outcome* outcome) {
  std::vector<Entry> entries;
  entries.push_back(std::move(entry));
  int64_t handle = 0;
  Outcome here = (*this)[rank].Run(0, std::move(entries), 20, &handle);
  Status status = here.status;
  if (outcome != nullptr) *outcome = std::move(here);
  return status;
}

}  // namespace spark_hvd::test
