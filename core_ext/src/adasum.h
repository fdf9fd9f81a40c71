// The Adasum of a tensor, made of other collectives, so that any transport can carry it.
//
// Two gradients a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: their sum when they are orthogonal, their
// mean when they are equal (Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020). Ranks are
// combined in a tree: (0, 1), (2, 3), ..., then the pairs; an odd one passes.
//
// Every rank gets its slice of all ranks' tensors (an alltoall), so each level needs only the scalar products of whole
// tensors: the ranks' parts of them, gathered and added in rank order. An allgather of the slices ends it. Slices are
// cut from each tensor by itself, so the bits do not depend on what is fused with it.
#ifndef SPARK_HVD_SRC_ADASUM_H_
#define SPARK_HVD_SRC_ADASUM_H_

#include <functional>
#include <memory>
#include <vector>

#include "transport/operation.h"
#include "transport/provider.h"

namespace spark_hvd {

class Adasum : public Operation {
 public:
  using Find = std::function<Transport*(const Collective&)>;

  // `find` gives the transport of a collective. Takes the sequence numbers from collective.sequence on, Steps() of
  // them.
  Adasum(const Members& members, Collective collective, Find find);

  static int64_t Steps(int32_t ranks);

  Status Advance(bool* moved, bool* done) override;
  std::vector<int32_t> Missing() const override;

 private:
  // The steps, by the element type that is computed in.
  class Work {
   public:
    virtual ~Work() = default;
    virtual Collective Scatter() = 0;
    virtual bool NeedsLevel() const = 0;
    virtual Collective Level() = 0;
    virtual void Combine() = 0;
    virtual Collective Gather() = 0;
    virtual void Finish() = 0;
  };
  template <typename T>
  class TypedWork;

  enum class Step { kStart, kScatter, kLevel, kGather, kEnd };
  void Begin(Step step, Collective collective);
  void Next();

  Find find_;
  int64_t sequence_;
  std::unique_ptr<Work> work_;
  std::unique_ptr<Operation> inner_;
  Step step_ = Step::kStart;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_ADASUM_H_
