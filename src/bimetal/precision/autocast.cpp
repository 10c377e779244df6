#include "bimetal/precision/autocast.h"

#include <ATen/autocast_mode.h>

namespace bimetal::precision {

namespace cast = at::autocast;

Autocast::Autocast(c10::DeviceType device, Precision precision)
    : device_(device), changed_(precision != Precision::float32) {
  if (!changed_) return;
  enabled_before_ = cast::is_autocast_enabled(device);
  dtype_before_ = cast::get_autocast_dtype(device);
  cast::set_autocast_dtype(device, dtype_of(precision));
  cast::set_autocast_enabled(device, true);
}

Autocast::~Autocast() {
  if (!changed_) return;
  cast::set_autocast_enabled(device_, enabled_before_);
  cast::set_autocast_dtype(device_, dtype_before_);
}

CastCache::~CastCache() {
  cast::clear_cache();
}

}  // namespace bimetal::precision
