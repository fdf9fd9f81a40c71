// What ranks do together before a transport stands: everybody says a few bytes and hears what everybody said.
#ifndef SPARK_HVD_SRC_TRANSPORT_EXCHANGE_H_
#define SPARK_HVD_SRC_TRANSPORT_EXCHANGE_H_

#include <functional>
#include <string>
#include <vector>

#include "status.h"

namespace spark_hvd {

// One round among the ranks of a process set, in the order of the set. Blocks, with a time limit of its own, which is
// an error that names who is missing. All ranks make the same rounds.
using Exchange = std::function<Status(const std::string& mine, std::vector<std::string>* all)>;

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_EXCHANGE_H_
