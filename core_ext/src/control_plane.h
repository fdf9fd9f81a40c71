// How ranks reach each other while they agree. Messages of any length, in order for each pair of ranks, none lost.
// Used by the engine's thread alone; no call blocks.
#ifndef SPARK_HVD_SRC_CONTROL_PLANE_H_
#define SPARK_HVD_SRC_CONTROL_PLANE_H_

#include "message.h"
#include "status.h"

namespace spark_hvd {

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Takes the message; it travels while the plane is used.
  virtual Status Send(int peer, Bytes bytes) = 0;
  // *received says whether a message had come.
  virtual Status Receive(bool* received, int* peer, Bytes* bytes) = 0;
  // Moves what was sent; *sent says whether all of it has left this rank.
  virtual Status Flush(bool* sent) = 0;
  // All ranks have agreed that nothing more comes: gives back what is shared with them. Not called after a failure.
  virtual void Close() = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_CONTROL_PLANE_H_
