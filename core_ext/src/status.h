// How an operation ended, as a value: code, message, and the ranks that are known to be the cause. No exception crosses
// a layer of the core; each layer adds what it knows (tensor, rank, next step) to the message of the one below.
#ifndef SPARK_HVD_SRC_STATUS_H_
#define SPARK_HVD_SRC_STATUS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "spark_hvd/core.h"

namespace spark_hvd {

struct Status {
  hvd_status code = HVD_OK;
  std::string message;
  std::vector<int32_t> ranks;

  bool ok() const { return code == HVD_OK; }

  static Status Ok() { return {}; }
  static Status Error(hvd_status code, std::string message, std::vector<int32_t> ranks = {}) {
    return {code, std::move(message), std::move(ranks)};
  }
};

// "rank 1", "ranks 0, 2 and 5": for messages.
std::string RankList(const std::vector<int32_t>& ranks);

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_STATUS_H_
