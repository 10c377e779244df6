#pragma once
// What a store's handle is. Private to this folder.

#include <memory>

#include "bimetal/rendezvous/store.h"

struct bimetal_store {
  std::unique_ptr<bimetal::rendezvous::Store> store;
};
