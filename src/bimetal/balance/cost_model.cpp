#include "bimetal/balance/cost_model.h"

namespace bimetal::balance {

CostModel::CostModel(double alpha, double beta) : alpha_(alpha), beta_(beta), known_(true) {}

}  // namespace bimetal::balance
