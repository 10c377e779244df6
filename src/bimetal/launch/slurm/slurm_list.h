#pragma once
// The two compressed lists in Slurm's variables. Pure.

#include <string>
#include <string_view>
#include <vector>

namespace bimetal::launch {

/// The nodes of SLURM_NODELIST and its like, in order: "node[01-03,07],gpu1" is node01, node02,
/// node03, node07 and gpu1. Numbers keep their leading zeros; several brackets in one name
/// multiply, the last one running fastest. Error(InvalidArgument) shows the text if it is not
/// well-formed.
std::vector<std::string> expand_node_list(std::string_view text);

/// Tasks on each node, from SLURM_TASKS_PER_NODE and its like: "4(x2),1" is 4, 4, 1.
std::vector<int> expand_tasks_per_node(std::string_view text);

}  // namespace bimetal::launch
