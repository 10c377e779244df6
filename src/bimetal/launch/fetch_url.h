#pragma once
// Data sets at a URL, by Python's fsspec: s3://, gs://, https://, file:// and whatever else is
// installed for it. A Python process does it, which ends with this one (POSIX).

#include "bimetal/data/transfer/file_transfer.h"

namespace bimetal::launch {

/// A data::Fetch. The URL reaches Python by its environment, never by a command line. Errors:
/// Unsupported if Python lacks fsspec or its part for this protocol, with the command that installs
/// it; InvalidArgument for an unknown protocol or files that are not there; Timeout if nothing
/// comes for request.patience; System for all else that fails there, and if there is no Python;
/// Aborted once the meter is stopped. Messages hold none of the URL's secrets.
data::Fetched fetch_url(const data::FetchRequest& request, progress::Meter& meter);

}  // namespace bimetal::launch
