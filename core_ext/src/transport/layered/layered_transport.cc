#include "transport/layered/layered_transport.h"

#include <algorithm>

#include "transport/shm/shm_transport.h"
#include "transport/shm/streams.h"

namespace spark_hvd {
namespace {

// Sums and products of 16-bit floats go on in float32 from host to host: they are rounded once, at the end.
bool GoesWide(const Collective& c) {
  const bool narrow = c.dtype == HVD_FLOAT16 || c.dtype == HVD_BFLOAT16;
  return narrow && c.op != HVD_MIN && c.op != HVD_MAX;
}

// The three stages, one after the other. Scaling: before in the first one, after in the carriers' last step.
class LayeredAllreduce : public Operation {
 public:
  LayeredAllreduce(const LayerPlan* plan, ShmLane* lane, Transport* cross, const Collective& c, ScratchBuffer* share)
      : plan_(plan),
        lane_(lane),
        cross_(cross),
        collective_(c),
        wide_(GoesWide(c)),
        row_(c.spans, ElementSize(c.dtype)) {
    const int local = static_cast<int>(plan->local.size());
    for (int i = 0; i < local; ++i) {
      const Share part =
          i < plan->carriers ? EvenShare(0, row_.count(), i, plan->carriers, row_.element_size()) : Share{0, 0};
      counts_.push_back(part.end - part.begin);
    }
    mine_ = counts_[static_cast<size_t>(lane->arena->position())];
    part_ = share->Reserve(mine_ * (wide_ ? ElementSize(HVD_FLOAT32) : row_.element_size()));
    Arithmetic inside;
    inside.dtype = c.dtype;
    inside.op = c.op;
    inside.prescale = c.scaling.prescale;
    operation_ = std::make_unique<ShmReducescatter>(lane, 2 * c.sequence, row_, part_, counts_, inside, wide_);
  }

  Status Advance(bool* moved, bool* done) override {
    *done = false;
    while (operation_) {
      bool through = false;
      Status status = operation_->Advance(moved, &through);
      if (!status.ok() || !through) return status;
      *moved = true;
      Next();
    }
    *done = true;
    return Status::Ok();
  }

  std::vector<int32_t> Missing() const override {
    std::vector<int32_t> missing;
    if (!operation_) return missing;
    const std::vector<int32_t>& names = stage_ == Stage::kAcross ? plan_->crossing : plan_->local;
    for (int32_t position : operation_->Missing()) missing.push_back(names[static_cast<size_t>(position)]);
    return missing;
  }

 private:
  enum class Stage { kReduce, kAcross, kGather };

  void Next() {
    if (stage_ == Stage::kReduce && plan_->carries) {
      Collective across;
      across.kind = Kind::kAllreduce;
      across.dtype = wide_ ? static_cast<int32_t>(HVD_FLOAT32) : collective_.dtype;
      across.op = collective_.op == HVD_AVERAGE ? static_cast<int32_t>(HVD_SUM) : collective_.op;
      across.sequence = collective_.sequence;
      across.spans = {{part_, part_, mine_}};
      operation_ = cross_->Start(across);
      stage_ = Stage::kAcross;
    } else if (stage_ != Stage::kGather) {
      if (plan_->carries) Finish();
      operation_ = std::make_unique<ShmAllgather>(lane_, 2 * collective_.sequence + 1, part_, counts_, row_);
      stage_ = Stage::kGather;
    } else {
      operation_.reset();
    }
  }

  void Finish() {
    Arithmetic after = Arithmetic::Of(collective_.dtype, HVD_SUM, collective_.scaling, plan_->size);
    after.prescale = 1.0;
    if (wide_) after.dtype = HVD_FLOAT32;
    if (after.divisor != 1 || after.postscale != 1.0) {
      const void* input = part_;
      void* output = part_;
      Reduce(&input, 1, &output, 1, mine_, after);
    }
    if (wide_) Narrow(reinterpret_cast<const float*>(part_), part_, mine_, collective_.dtype);
  }

  const LayerPlan* plan_;
  ShmLane* lane_;
  Transport* cross_;
  const Collective collective_;
  const bool wide_;
  const TensorRow row_;
  std::vector<int64_t> counts_;  // by local rank
  int64_t mine_ = 0;
  char* part_ = nullptr;
  Stage stage_ = Stage::kReduce;
  std::unique_ptr<Operation> operation_;
};

}  // namespace

LayerPlan LayerPlan::Of(const Members& members, const std::vector<std::vector<int32_t>>& hosts) {
  LayerPlan plan;
  plan.size = members.size();
  std::vector<std::vector<int32_t>> groups;  // positions in the set, by host
  for (const auto& host : hosts) {
    std::vector<int32_t> group;
    for (int32_t position = 0; position < members.size(); ++position) {
      const int32_t rank = members.ranks[static_cast<size_t>(position)];
      if (std::binary_search(host.begin(), host.end(), rank)) group.push_back(position);
    }
    if (!group.empty()) groups.push_back(std::move(group));
  }
  size_t least = static_cast<size_t>(members.size()), most = 0;
  for (const auto& group : groups) {
    least = std::min(least, group.size());
    most = std::max(most, group.size());
  }
  if (groups.size() < 2 || most < 2) return plan;
  plan.carriers = static_cast<int>(least);
  size_t place = 0;
  for (const auto& group : groups) {
    const auto found = std::find(group.begin(), group.end(), members.position);
    if (found == group.end()) continue;
    plan.local = group;
    place = static_cast<size_t>(found - group.begin());
  }
  plan.carries = place < least;
  for (const auto& group : groups) {
    if (plan.carries) plan.crossing.push_back(group[place]);
  }
  return plan;
}

bool LayeredTransport::Serves(const Collective& c) const { return c.kind == Kind::kAllreduce && c.op != HVD_ADASUM; }

std::unique_ptr<Operation> LayeredTransport::Start(const Collective& c) {
  return std::make_unique<LayeredAllreduce>(&plan_, &lane_, cross_.get(), c, &share_);
}

Status LayeredProvider::Open(const Members& members, const Exchange& exchange, std::unique_ptr<Transport>* out) {
  const std::shared_ptr<ShmHost> host = host_();
  LayerPlan plan = LayerPlan::Of(members, host->hosts());
  if (plan.carriers == 0) return Status::Ok();  // the same on all members
  std::shared_ptr<Arena> arena;
  std::string why;
  Status status = Arena::Open(host, members.ranks, exchange, options_, &arena, &why);
  if (!status.ok()) return status;
  if (!arena) {
    note_("process set " + std::to_string(members.set) + " goes through messages inside hosts too: " + why);
    return status;
  }
  std::unique_ptr<Transport> cross;
  if (plan.carries) {
    Members crossing;
    crossing.set = members.set;
    for (int32_t position : plan.crossing) {
      if (position == members.position) crossing.position = crossing.size();
      crossing.ranks.push_back(members.ranks[static_cast<size_t>(position)]);
    }
    cross = make_cross_(std::move(crossing));
  }
  *out = std::make_unique<LayeredTransport>(std::move(plan), std::move(arena), std::move(cross));
  return status;
}

}  // namespace spark_hvd
