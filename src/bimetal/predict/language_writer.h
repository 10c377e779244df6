#pragma once
// A language model for serving/, whose weights may be replaced by newer ones.

#include "bimetal/checkpoint/model_description.h"
#include "bimetal/device/place.h"
#include "bimetal/predict/prediction_model.h"
#include "bimetal/serving/server.h"

namespace bimetal::predict {

class LanguageWriter final : public serving::Writer {
 public:
  /// `description` of a language model, `weights` as that says, on `place`'s device; they must
  /// outlive it. `speed` as of a worker.
  LanguageWriter(const checkpoint::ModelDescription& description, const device::Place& place,
                 double speed, WeightsSource& weights);

  serving::ModelFacts facts() const override;
  /// With the newest weights, which the text keeps.
  std::unique_ptr<serving::Text> begin(const serving::TextRequest& wanted) override;

 private:
  const checkpoint::ModelDescription description_;
  const device::Place place_;
  const double speed_;
  WeightsSource& weights_;
};

}  // namespace bimetal::predict
