#include "transport/layered/layered_transport.h"

#include <algorithm>

#include "transport/layered/layered_operation.h"

namespace spark_hvd {
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
  plan.hosts = std::move(groups);
  return plan;
}

bool LayeredTransport::Serves(const Collective& c) const {
  return (c.kind == Kind::kAllreduce || c.kind == Kind::kReducescatter) && c.op != HVD_ADASUM;
}

std::unique_ptr<Operation> LayeredTransport::Start(const Collective& c) {
  const Layers layers{&plan_, &lane_, cross_.get(), &share_};
  if (c.kind == Kind::kReducescatter) return std::make_unique<LayeredReducescatter>(layers, c);
  return std::make_unique<LayeredAllreduce>(layers, c);
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
