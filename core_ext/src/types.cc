#include "types.h"

namespace spark_hvd {

int64_t ElementSize(int32_t dtype) {
  switch (dtype) {
    case HVD_FLOAT32:
    case HVD_INT32:
      return 4;
    case HVD_FLOAT64:
    case HVD_INT64:
      return 8;
    case HVD_UINT8:
      return 1;
    default:
      return 0;
  }
}

const char* DtypeName(int32_t dtype) {
  switch (dtype) {
    case HVD_FLOAT32:
      return "float32";
    case HVD_FLOAT64:
      return "float64";
    case HVD_UINT8:
      return "uint8";
    case HVD_INT32:
      return "int32";
    case HVD_INT64:
      return "int64";
    default:
      return "unknown dtype";
  }
}

const char* OpName(int32_t op) {
  switch (op) {
    case HVD_SUM:
      return "sum";
    case HVD_AVERAGE:
      return "average";
    default:
      return "unknown op";
  }
}

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce:
      return "allreduce";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kBarrier:
      return "barrier";
  }
  return "unknown collective";
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  if (shape.size() == 1) text += ",";
  return text + ")";
}

int64_t Request::count() const {
  if (kind == Kind::kBarrier) return 0;
  int64_t product = 1;
  for (int64_t extent : shape) product *= extent;
  return product;
}

}  // namespace spark_hvd
