#include "transport/direct/direct_transport.h"

#include <algorithm>
#include <utility>

#include "transport/direct/block_exchange.h"
#include "transport/direct/link_consent.h"
#include "transport/direct/sliced_reduction.h"
#include "transport/direct/tree_broadcast.h"
#include "transport/direct/whole_allreduce.h"

namespace spark_hvd {

DirectTransport::DirectTransport(std::shared_ptr<Link> link, Members members, DirectOptions options)
    : link_(std::move(link)), circle_{link_.get(), std::move(members)}, options_(options) {
  options_.piece_bytes = std::max<int64_t>(options_.piece_bytes / 8 * 8, 8);
}

std::unique_ptr<Operation> DirectTransport::Start(const Collective& collective) {
  switch (collective.kind) {
    case Kind::kAllreduce: {
      int64_t bytes = 0;
      for (const Span& span : collective.spans) bytes += span.count * ElementSize(collective.dtype);
      if (bytes * (circle_.members.size() - 1) <= options_.small_bytes) {
        return std::make_unique<WholeAllreduce>(circle_, collective, &scratch_, &packing_);
      }
      break;
    }
    case Kind::kBroadcast:
      return std::make_unique<TreeBroadcast>(circle_, collective, options_.piece_bytes, options_.window);
    case Kind::kReducescatter:
      break;
    default:
      return std::make_unique<BlockExchange>(circle_, collective, options_.piece_bytes, options_.window);
  }
  return std::make_unique<SlicedReduction>(circle_, collective, &scratch_, &packing_, options_.piece_bytes,
                                           options_.window);
}

Status DirectProvider::Open(const Members& members, const Exchange&, std::unique_ptr<Transport>* out) {
  *out = std::make_unique<DirectTransport>(link_, members, options_);
  return Status::Ok();
}

std::unique_ptr<Consent> DirectProvider::OpenConsent(const Members& members) {
  return std::make_unique<LinkConsent>(link_, members);
}

}  // namespace spark_hvd
