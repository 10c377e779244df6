#pragma once
// The credentials that a client shows to a job's servers, and those that the servers require.

#include <string>

#include "bimetal/net/encryption.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/listener.h"
#include "bimetal/net/token.h"

namespace bimetal::net {

struct Credentials {
  Token token;
  Encryption encryption = Encryption::off;
  std::string job_id;  ///< empty for what belongs to no job
};

/// For a Listener that lets in who has proved the token, belongs to this job and wants encryption
/// if it does. What to do with it is left to be said.
ListenerOptions listener_options(Service service, const Credentials& credentials);

/// For dial(). `name` is the server's, for messages.
DialRequest dial_request(Service service, Endpoint server, std::string name,
                         const Credentials& credentials, Deadline deadline);

}  // namespace bimetal::net
