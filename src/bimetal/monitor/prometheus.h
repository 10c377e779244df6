#pragma once
// A job's status in Prometheus' text format, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/).

#include <string>

#include "bimetal/monitor/status.h"

namespace bimetal::monitor {

/// What a server says of such a text.
inline constexpr const char* kPrometheusContentType = "text/plain; version=0.0.4; charset=utf-8";

/// Every metric that is known now, with its HELP and TYPE; docs/monitoring.md lists them.
std::string to_prometheus(const Status& status);

}  // namespace bimetal::monitor
