#include "bimetal/cli/token_file.h"

namespace bimetal::cli {

net::Token read_token(const std::string& token_file) {
  return token_file.empty() ? net::Token::from_environment() : net::Token::from_file(token_file);
}

}  // namespace bimetal::cli
