// Reductions of a process set over several hosts: reduce inside each host, carry across, deal inside each host.
//
// As many ranks of each host as the smallest host has are carriers. Each carrier gets its share of the row reduced over
// the ranks of its host (ascending), reduces it over the hosts (ascending) with the carriers of the same place there,
// and gives the result to the ranks of its host. So each byte leaves a host once, all carriers use the network, and an
// allreduce and a reducescatter have the same bits.
//
// What only moves data goes the direct way, each part from its owner to its receivers: there is nothing to combine, so
// a stop on the way would add a copy. Where the receivers of one part share a host it crosses once for each of them.
#ifndef SPARK_HVD_SRC_TRANSPORT_LAYERED_LAYERED_TRANSPORT_H_
#define SPARK_HVD_SRC_TRANSPORT_LAYERED_LAYERED_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fusion.h"
#include "reduction.h"
#include "transport/operation.h"
#include "transport/provider.h"
#include "transport/shm/arena.h"
#include "transport/shm/rounds.h"
#include "transport/shm/tensor_row.h"

namespace spark_hvd {

// Who does what; the same on all ranks but for `place` and `crossing`.
struct LayerPlan {
  int32_t size = 0;                         // ranks of the set
  int carriers = 0;                         // of each host
  bool carries = false;                     // this rank
  std::vector<std::vector<int32_t>> hosts;  // members, as positions in the set, by host
  std::vector<int32_t> local;               // those on this host
  std::vector<int32_t> crossing;  // with this rank's place on each host, as positions in the set; if it carries

  // `hosts`: world ranks by host. Carriers are 0 when no host has two members: then there is nothing to layer.
  static LayerPlan Of(const Members& members, const std::vector<std::vector<int32_t>>& hosts);
};

class LayeredTransport : public Transport {
 public:
  // `cross`: between the carriers with this rank's place; null if this rank does not carry.
  LayeredTransport(LayerPlan plan, std::shared_ptr<Arena> arena, std::unique_ptr<Transport> cross)
      : plan_(std::move(plan)), lane_(std::move(arena), nullptr), cross_(std::move(cross)) {}

  const char* name() const override { return "layered"; }
  bool Serves(const Collective& collective) const override;
  std::unique_ptr<Operation> Start(const Collective& collective) override;

 private:
  const LayerPlan plan_;
  ShmLane lane_;
  std::unique_ptr<Transport> cross_;
  ScratchBuffer share_;
};

// Serves sets over several hosts, of which one at least has several ranks.
class LayeredProvider : public Provider {
 public:
  using MakeCross = std::function<std::unique_ptr<Transport>(Members members)>;
  using Note = std::function<void(const std::string&)>;

  // `host`: gives the host once the first set (the world) was opened by the provider before this one.
  LayeredProvider(std::function<std::shared_ptr<ShmHost>()> host, MakeCross make_cross, Note note,
                  ArenaOptions options = {})
      : host_(std::move(host)), make_cross_(std::move(make_cross)), note_(std::move(note)), options_(options) {}

  Status Open(const Members& members, const Exchange& exchange, std::unique_ptr<Transport>* out) override;
  std::unique_ptr<Consent> OpenConsent(const Members&) override { return nullptr; }

 private:
  const std::function<std::shared_ptr<ShmHost>()> host_;
  const MakeCross make_cross_;
  const Note note_;
  const ArenaOptions options_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_LAYERED_LAYERED_TRANSPORT_H_
