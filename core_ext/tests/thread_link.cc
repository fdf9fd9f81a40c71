#include "thread_link.h"

#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "check.h"
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
      std::memcpy(want.data, post.data, static_cast<size_t>(post.bytes));
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

  Status Send(int peer, Tag tag, const void* data, int64_t bytes, Request* request) override {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    *request = hub_->next++;
    if (!Lost(peer)) {
      hub_->channels[{rank_, peer, tag}].posts.push_back({static_cast<const char*>(data), bytes, *request});
      hub_->Match(rank_, peer, tag);
    }
    return Status::Ok();
  }

  Status Receive(int peer, Tag tag, void* data, int64_t bytes, Request* request) override {
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

  Status Probe(Tag tag, bool* found, int* peer, int64_t* bytes) override {
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
  config.comm_timeout = 30;
  config.log_level = static_cast<int>(LogLevel::kFatal);
  return config;
}

World::World(int size, EngineConfig config, DirectOptions options) : links_(MakeLinks(size)) {
  for (const auto& link : links_) {
    engines_.push_back(Engine::Start(config, std::make_unique<LinkControlPlane>(link),
                                     std::make_unique<DirectTransport>(link, options)));
  }
}

World::~World() {
  for (const auto& engine : engines_) engine->Shutdown(0, true);
}

int64_t World::Submit(int rank, Entry entry) {
  int64_t handle = 0;
  const Status status = (*this)[rank].Submit(std::move(entry), &handle);
  if (!status.ok()) throw std::runtime_error(status.message);
  return handle;
}

int64_t World::Allreduce(int rank, const std::string& name, const std::vector<float>& in, std::vector<float>* out,
                         int32_t op, double prescale, double postscale) {
  Entry entry;
  entry.request.kind = Kind::kAllreduce;
  entry.request.name = name;
  entry.request.op = op;
  entry.request.scaling = {prescale, postscale, op == HVD_AVERAGE};
  entry.request.shape = {static_cast<int64_t>(in.size())};
  out->resize(in.size());
  entry.input = in.data();
  entry.output = out->data();
  return Submit(rank, std::move(entry));
}

int64_t World::Broadcast(int rank, const std::string& name, std::vector<float>* data, int root) {
  Entry entry;
  entry.request.kind = Kind::kBroadcast;
  entry.request.name = name;
  entry.request.root = root;
  entry.request.shape = {static_cast<int64_t>(data->size())};
  entry.input = entry.output = data->data();
  return Submit(rank, std::move(entry));
}

int64_t World::Barrier(int rank, const std::string& name) {
  Entry entry;
  entry.request.kind = Kind::kBarrier;
  entry.request.name = name;
  return Submit(rank, std::move(entry));
}

Status World::Wait(int rank, int64_t handle, double timeout) { return (*this)[rank].handles().Wait(handle, timeout); }

}  // namespace spark_hvd::test
