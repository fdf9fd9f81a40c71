// A broadcast down a binomial tree, piece by piece.
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_TREE_BROADCAST_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_TREE_BROADCAST_H_

#include <vector>

#include "transport/direct/stream.h"
#include "transport/operation.h"

namespace spark_hvd {

class TreeBroadcast : public Operation {
 public:
  TreeBroadcast(const Circle& circle, const Collective& collective, int64_t piece_bytes, int64_t window);
  ~TreeBroadcast() override;

  Status Advance(bool* moved, bool* done) override;
  std::vector<int32_t> Missing() const override;

 private:
  int64_t Length(int64_t piece) const;
  Status Post(bool* moved);

  char* const data_;
  const int64_t bytes_, piece_bytes_, window_, pieces_;
  std::vector<Stream> up_;  // at most one
  std::vector<Stream> down_;
  bool ended_ = false;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_TREE_BROADCAST_H_
