#pragma once
// The part of the parameters that each server keeps, by the bandwidth of its link. Pure.

#include <span>
#include <vector>

namespace bimetal::parallel::server {

/// Bytes per second between a worker and a server.
struct LinkRate {
  double up = 0;    ///< towards the server
  double down = 0;  ///< from it
};

/// Rates that differ by no more than this factor count as equal: noise is to make no odd plans.
inline constexpr double kAlike = 1.25;
/// No server is left with less than this part of what the fastest one keeps.
inline constexpr double kLeastWeight = 0.01;

/// Weights of the servers, 1 for the fastest, such that what a step moves, as many bytes up as down
/// and for each worker, takes every link as long. `rates[i][k]`: between worker i and server k.
/// Error(InvalidArgument) for no worker or server, rows of unequal length, or a rate that is not
/// above 0 and finite.
std::vector<double> weights_of(std::span<const std::vector<LinkRate>> rates);

}  // namespace bimetal::parallel::server
