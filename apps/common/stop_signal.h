// Signals by which launchers, schedulers and terminals ask a run to save and stop.
#pragma once

namespace convoy::apps {

/// SIGTERM, SIGINT, SIGHUP (but under nohup), SIGUSR1, SIGUSR2 and SIGXCPU ask running trainers to save and stop;
/// another one (but for SIGXCPU) two seconds later ends the process at once, with 128 + its number.
void install_signal_handlers();

/// Whether one has come.
bool stop_signalled();

}  // namespace convoy::apps
