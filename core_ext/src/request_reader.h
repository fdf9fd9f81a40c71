// Reads what a caller of the C ABI hands in: every mistake that one rank can see by itself is found here.
#ifndef SPARK_HVD_SRC_REQUEST_READER_H_
#define SPARK_HVD_SRC_REQUEST_READER_H_

#include <vector>

#include "spark_hvd/core.h"
#include "status.h"
#include "transport/provider.h"
#include "types.h"

namespace spark_hvd {

// `members`: of the process set that it names.
Status ReadCollective(const hvd_collective* collective, const Members& members, std::vector<Entry>* entries);

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_REQUEST_READER_H_
