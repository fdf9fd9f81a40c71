// The reductions that go in three stages: inside each host, between the carriers, inside each host again.
//
// Scaling: before in the first stage, after on the carriers. Sums and products of 16-bit floats go from host to host in
// float32, so that they are rounded once, at the end.
#ifndef SPARK_HVD_SRC_TRANSPORT_LAYERED_LAYERED_OPERATION_H_
#define SPARK_HVD_SRC_TRANSPORT_LAYERED_LAYERED_OPERATION_H_

#include <memory>
#include <vector>

#include "transport/layered/layered_transport.h"

namespace spark_hvd {

// What a transport lends to its operations.
struct Layers {
  const LayerPlan* plan;
  ShmLane* lane;
  Transport* cross;  // null if this rank does not carry
  ScratchBuffer* share;
};

class LayeredOperation : public Operation {
 public:
  Status Advance(bool* moved, bool* done) final;
  std::vector<int32_t> Missing() const final;

 protected:
  LayeredOperation(const Layers& layers, const Collective& c);

  // What comes after the stage that has ended.
  virtual std::unique_ptr<Operation> Across() = 0;
  virtual std::unique_ptr<Operation> Inside() = 0;

  int64_t ElementSizeAcross() const { return ElementSize(across_dtype_); }
  Arithmetic InFirstStage() const;
  // A collective of the carriers, but for what it works on.
  Collective BetweenCarriers() const;
  // Scales what the carriers have reduced, in place, and rounds it.
  void Finish(char* data, int64_t count) const;

  const LayerPlan& plan_;
  ShmLane* const lane_;
  Transport* const cross_;
  const Collective collective_;
  const bool wide_;
  const int32_t across_dtype_;
  std::unique_ptr<Operation> operation_;

 private:
  enum class Stage { kReduce, kAcross, kDeal };

  void Next();

  Stage stage_ = Stage::kReduce;
};

class LayeredAllreduce : public LayeredOperation {
 public:
  LayeredAllreduce(const Layers& layers, const Collective& c);

 private:
  std::unique_ptr<Operation> Across() override;
  std::unique_ptr<Operation> Inside() override;

  const TensorRow row_;
  std::vector<int64_t> counts_;  // by local rank
  int64_t mine_ = 0;
  char* part_ = nullptr;
};

// A carrier has, host by host, the blocks of the ranks there whose place fits its own.
class LayeredReducescatter : public LayeredOperation {
 public:
  LayeredReducescatter(const Layers& layers, const Collective& c);

 private:
  bool Serves(int carrier, size_t place) const { return static_cast<int>(place) % plan_.carriers == carrier; }
  int64_t CountFor(int carrier, const std::vector<int32_t>& host) const;
  std::unique_ptr<Operation> Across() override;
  std::unique_ptr<Operation> Inside() override;

  const int place_;
  char* part_ = nullptr;    // reduced inside this host
  char* blocks_ = nullptr;  // and across, for ranks of this host
  int64_t mine_ = 0;        // elements of those
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_LAYERED_LAYERED_OPERATION_H_
