#pragma once
// The option --token-file of many subcommands.

#include <string>

#include "bimetal/net/token.h"

namespace bimetal::cli {

/// The token of --token-file, else of BIMETAL_TOKEN_FILE or BIMETAL_TOKEN, else none.
net::Token read_token(const std::string& token_file);

}  // namespace bimetal::cli
