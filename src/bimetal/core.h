#pragma once
// Everything of Bimetal that needs no torch: how ranks meet, their groups and collectives, and who
// gets which share of the work.

#include "bimetal/balance/balancer.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/sampler.h"
#include "bimetal/launch/meet.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/version.h"
