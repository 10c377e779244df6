#include "bimetal/serving/http/http_front.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <utility>

#include "bimetal/base/json.h"
#include "bimetal/net/http/http_server.h"
#include "bimetal/serving/answering.h"

namespace bimetal::serving {
namespace {

using Json = nlohmann::json;
using Respond = net::HttpServer::Respond;

/// The limit of a request. JSON of pixels takes about four bytes for each, base64 one and a third.
constexpr std::size_t kMaxHttpBody = std::size_t{4} << 20;
constexpr std::size_t kMaxHttpConnections = 64;
constexpr const char* kJsonType = "application/json";
constexpr const char* kWhatThereIs =
    "there are GET /health and /v1/model, POST /v1/predict and /v1/generate here";

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

net::HttpAnswer refusal(int status, const std::string& why) {
  return {status, kJsonType, line_of({{"error", why}})};
}

int status_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::InvalidArgument: return 400;
    case ErrorCode::Aborted: return 503;
    default: return 500;
  }
}

net::HttpAnswer refusal(const Error& error) {
  return refusal(status_of(error), error.what());
}

net::HttpAnswer busy() {
  return refusal(503, "the server is busy: too much waits already; try again later");
}

/// An object. Deep nesting, which would cost a stack, is refused as no object.
Json object_of(std::string_view body) {
  constexpr int kDeepest = 8;
  auto json = parse_json<Json>(body, kDeepest);
  if (json.is_object()) return json;
  throw Error(ErrorCode::InvalidArgument, "the body has to be a JSON object");
}

/// A number of the object, or its default.
template <typename Number>
Number number_in(const Json& json, const char* key, Number otherwise, Number least, Number most) {
  const auto found = json.find(key);
  if (found == json.end()) return otherwise;
  const bool fits = std::is_integral_v<Number> ? found->is_number_integer() : found->is_number();
  if (fits) {
    const auto value = found->template get<Number>();
    if (value >= least && value <= most) return value;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("\"{}\" has to be a number from {} to {}", key, least, most));
}

TextRequest text_request_of(const Json& asked, const TextCoding& coding) {
  TextRequest wanted;
  const auto text = asked.find("prompt"), tokens = asked.find("prompt_tokens");
  if (text != asked.end() && text->is_string() && tokens == asked.end()) {
    if (!coding.encode) {
      throw Error(ErrorCode::InvalidArgument,
                  "this server knows the tokenizer bytes alone: give \"prompt_tokens\"");
    }
    wanted.prompt = coding.encode(text->get<std::string>());
  } else if (tokens != asked.end() && tokens->is_array() && text == asked.end()) {
    for (const auto& token : *tokens) {
      if (!token.is_number_integer()) {
        throw Error(ErrorCode::InvalidArgument, "\"prompt_tokens\" is a list of whole numbers");
      }
      wanted.prompt.push_back(token.get<std::int64_t>());
    }
  } else {
    throw Error(ErrorCode::InvalidArgument,
                "give \"prompt\", a text, or \"prompt_tokens\", a list of whole numbers");
  }
  if (wanted.prompt.empty()) throw Error(ErrorCode::InvalidArgument, "the prompt is empty");
  constexpr std::int64_t kMostDrawn = 1 << 16;
  wanted.tokens = number_in<std::int64_t>(asked, "tokens", wanted.tokens, 1, kMostDrawn);
  wanted.temperature = number_in<double>(asked, "temperature", wanted.temperature, 0, 1000);
  wanted.top_k = number_in<std::int64_t>(asked, "top_k", wanted.top_k, 0, kMostTokens);
  wanted.seed = static_cast<std::uint64_t>(
      number_in<std::int64_t>(asked, "seed", 0, 0, std::numeric_limits<std::int64_t>::max()));
  return wanted;
}

}  // namespace

struct HttpFront::Impl {
  Impl(const HttpFrontOptions& given, Server& served)
      : coding(given.coding), server(served), http(server_options(given), handler()) {}

  static net::HttpServerOptions server_options(const HttpFrontOptions& options) {
    return {.listen = options.listen,
            .token = options.token,
            .patience = std::chrono::seconds(20),
            .answer_patience = options.answer_patience,
            .max_body_bytes = kMaxHttpBody,
            .max_connections = kMaxHttpConnections,
            .name = "server",
            .manual = "docs/serving.md"};
  }
  net::HttpServer::Handler handler() {
    return [this](const net::HttpRequest& request, std::string_view body, Respond respond) {
      try {
        handle(request, body, respond);
      } catch (const Error& error) {
        respond(refusal(error));
      }
    };
  }

  void handle(const net::HttpRequest& request, std::string_view body, const Respond& respond);
  void predict(std::string_view body, const Respond& respond);
  void generate(std::string_view body, const Respond& respond);
  net::HttpAnswer health() const;
  net::HttpAnswer model() const;

  const TextCoding coding;
  Server& server;
  net::HttpServer http;  // last: it asks the others
};

void HttpFront::Impl::handle(const net::HttpRequest& request, std::string_view body,
                             const Respond& respond) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const bool asks = request.path == "/v1/predict" || request.path == "/v1/generate";
  const bool tells = request.path == "/health" || request.path == "/v1/model";
  if (!asks && !tells) return respond(refusal(404, kWhatThereIs));
  if (asks ? request.method != "POST" : !reads) {
    auto answer = refusal(405, kWhatThereIs);
    answer.allow = asks ? "POST" : "GET, HEAD";
    return respond(std::move(answer));
  }
  if (request.path == "/v1/predict") return predict(body, respond);
  if (request.path == "/v1/generate") return generate(body, respond);
  respond(request.path == "/health" ? health() : model());
}

void HttpFront::Impl::predict(std::string_view body, const Respond& respond) {
  auto request = images_of(object_of(body), server.facts());
  request->done = [respond, classes = server.facts().classes](Request& answered,
                                                              const std::optional<Error>& failure) {
    respond(failure ? refusal(*failure)
                    : net::HttpAnswer{200, kJsonType, predictions_json(answered, classes)});
  };
  if (!server.ask(std::move(request))) respond(busy());
}

void HttpFront::Impl::generate(std::string_view body, const Respond& respond) {
  auto wanted = text_request_of(object_of(body), coding);
  const auto written = std::make_shared<std::vector<std::int64_t>>();
  const auto tell = [written, respond, decode = coding.decode](
                        const TextPiece& piece, const std::optional<Error>& failure) {
    if (failure) return respond(refusal(*failure));
    written->insert(written->end(), piece.tokens.begin(), piece.tokens.end());
    if (!piece.last) return;
    Json json = {{"tokens", *written}, {"step", piece.step}};
    try {
      if (decode) json["text"] = decode(*written);
    } catch (const std::exception& why) {
      return respond(refusal(as_served_error(why)));
    }
    respond({200, kJsonType, line_of(json)});
  };
  if (!server.write(std::move(wanted), tell, respond.awaited)) respond(busy());
}

net::HttpAnswer HttpFront::Impl::health() const {
  if (const auto failure = server.failure()) return refusal(500, failure->what());
  const auto figures = server.figures();
  return {200, kJsonType,
          line_of({{"status", "ok"},
                   {"model", server.facts().model},
                   {"requests", figures.requests},
                   {"refused", figures.refused},
                   {"latency_median_s", figures.latency_median_s},
                   {"latency_p99_s", figures.latency_p99_s}})};
}

net::HttpAnswer HttpFront::Impl::model() const {
  const auto& facts = server.facts();
  Json json = {{"model", facts.model}, {"release", facts.release}};
  if (facts.context > 0) {
    json.update({{"kind", "text"}, {"vocabulary", facts.classes}, {"context", facts.context}});
  } else {
    json.update({{"kind", "images"},
                 {"channels", facts.channels},
                 {"height", facts.height},
                 {"width", facts.width},
                 {"classes", facts.classes},
                 {"mean", facts.mean},
                 {"stddev", facts.stddev}});
  }
  return {200, kJsonType, line_of(json)};
}

HttpFront::HttpFront(const HttpFrontOptions& options, Server& server)
    : impl_(std::make_unique<Impl>(options, server)) {}

HttpFront::~HttpFront() = default;

net::Endpoint HttpFront::endpoint() const {
  return impl_->http.endpoint();
}

}  // namespace bimetal::serving
