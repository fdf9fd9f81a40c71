// Every rank gives every other one block: allgather (the same to all), alltoall, and barrier (an empty word).
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_BLOCK_EXCHANGE_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_BLOCK_EXCHANGE_H_

#include <vector>

#include "transport/direct/stream.h"
#include "transport/operation.h"

namespace spark_hvd {

class BlockExchange : public Operation {
 public:
  BlockExchange(const Circle& circle, const Collective& collective, int64_t piece_bytes, int64_t window);
  ~BlockExchange() override;

  Status Advance(bool* moved, bool* done) override;
  std::vector<int32_t> Missing() const override;

 private:
  struct Block {
    Stream stream;
    char* data;
    int64_t bytes;
  };

  int64_t Pieces(const Block& block) const { return (block.bytes + piece_bytes_ - 1) / piece_bytes_; }
  void AddBlocks(const Circle& circle, const Collective& collective);

  const int64_t piece_bytes_, window_;
  char word_[2] = {0, 0};  // of a barrier: what is sent, what is received
  std::vector<Block> in_, out_;
  bool ended_ = false;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_BLOCK_EXCHANGE_H_
