#pragma once
// A server of predictions by HTTP and JSON. docs/serving.md lists the requests.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/serving/batcher.h"
#include "bimetal/serving/message.h"
#include "bimetal/serving/server.h"

namespace bimetal::serving {

/// Text to tokens and back; called on the server's thread. The client is told of errors. Empty:
/// prompts are tokens.
struct TextCoding {
  std::function<std::vector<std::int64_t>(const std::string& text)> encode = {};
  std::function<std::string(const std::vector<std::int64_t>& tokens)> decode = {};
};

struct HttpFrontOptions {
  net::Endpoint listen = {};  ///< port 0: a free one
  net::Token token = {};      ///< what "Authorization: Bearer" has to bring; none: loopback only
  TextCoding coding = {};
  std::chrono::milliseconds answer_patience{60000};  ///< then 504
};

/// GET /health and /v1/model, POST /v1/predict and /v1/generate.
class HttpFront {
 public:
  /// `server` must outlive it. Errors: Unauthorized beyond loopback without a token; System naming
  /// the port.
  HttpFront(const HttpFrontOptions& options, Server& server);
  /// Hangs up on everybody.
  ~HttpFront();
  HttpFront(const HttpFront&) = delete;
  HttpFront& operator=(const HttpFront&) = delete;

  net::Endpoint endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Images in JSON, and a model's predictions for them.

/// A request from an object with either "images" (nested lists, [height][width], [n][height][width]
/// or [n][channels][height][width], of whole numbers 0…255, which are pixels, or with "normalised":
/// true of any numbers, as the model takes them) or "images_base64" (the pixels of n images back to
/// back, a byte each). Error(InvalidArgument) that names its fault.
std::shared_ptr<Request> images_of(const nlohmann::json& asked, const ModelFacts& facts);

/// {"predictions": [{"class", "probability", "probabilities"}, …], "step"} of an answered request.
std::string predictions_json(const Request& request, std::int64_t classes);

}  // namespace bimetal::serving
