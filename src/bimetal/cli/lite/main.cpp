#include "bimetal/cli/lite/entry.h"

int main(int count, char** words) {
  return bimetal_lite_main(count, words);
}
