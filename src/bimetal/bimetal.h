#pragma once
// Everything that a program which trains with Bimetal needs: examples/cpp shows it in
// use.

#include "bimetal/api/data_parallel.h"
#include "bimetal/api/elastic.h"
#include "bimetal/api/job.h"
#include "bimetal/api/optimizers.h"
#include "bimetal/api/options.h"
#include "bimetal/api/pipeline.h"
#include "bimetal/api/task.h"
#include "bimetal/base/error.h"
#include "bimetal/version.h"
