// Carries out what the coordinator decided: gathers this rank's entries, fuses them, calls the transport, ends handles.
#ifndef SPARK_HVD_SRC_EXECUTOR_H_
#define SPARK_HVD_SRC_EXECUTOR_H_

#include <vector>

#include "fusion.h"
#include "handles.h"
#include "message.h"
#include "tensor_queue.h"
#include "transport/transport.h"

namespace spark_hvd {

class Executor {
 public:
  Executor(int rank, TensorQueue* queue, HandleTable* handles, Transport* transport)
      : rank_(rank), queue_(queue), handles_(handles), transport_(transport) {}

  // Not OK: the transport failed, and with it the engine. Errors that concern the collective alone go to its handles.
  Status Execute(const Response& response, Patience* patience);
  // Ends `entries`; their names are free before their waiters wake.
  void Finish(const std::vector<Entry>& entries, const Status& status);

 private:
  Status Run(const std::vector<Entry>& entries, Patience* patience);
  Status Allreduce(const std::vector<Entry>& entries, Patience* patience);

  const int rank_;
  TensorQueue* queue_;
  HandleTable* handles_;
  Transport* transport_;
  FusionBuffer fused_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_EXECUTOR_H_
