#pragma once
// Images as JSON has them, and what a model says of them.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bimetal/serving/batcher.h"
#include "bimetal/serving/message.h"

namespace bimetal::serving {

/// A request from an object with either "images" (nested lists, [height][width], [n][height][width]
/// or [n][channels][height][width], of whole numbers 0…255, which are pixels, or with "normalised":
/// true of any numbers, as the model takes them) or "images_base64" (the pixels of n images back to
/// back, a byte each). Error(InvalidArgument) that says what is wrong with it.
std::shared_ptr<Request> images_of(const nlohmann::json& asked, const ModelFacts& facts);

/// {"predictions": [{"class", "probability", "probabilities"}, …], "step"} of an answered request.
std::string predictions_json(const Request& request, std::int64_t classes);

}  // namespace bimetal::serving
