//! The user's terminal while it belongs to one rank (`--debug`): keys go there as they are pressed, Ctrl-C included.

use std::io::{IsTerminal, Read};
use std::sync::mpsc::Sender;

use corro_core::{Error, Result};
use rustix::termios::{InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::agent::message::Window;
use crate::event::Event;

/// While this lives, what is typed becomes [`Event::Typed`], key by key. Lines that are written look as always.
pub(crate) struct Keyboard(Option<Termios>);

impl Keyboard {
    /// Standard input need not be a terminal.
    pub(crate) fn take(events: Sender<Event>) -> Result<Self> {
        let stdin = std::io::stdin();
        let mut before = None;
        if stdin.is_terminal() {
            let failed = |e| Error::io("handing the terminal to a rank", e);
            let modes = tcgetattr(&stdin).map_err(failed)?;
            let mut keys = modes.clone();
            // The rank's own terminal does all of this, for the program that runs there.
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN);
            keys.input_modes.remove(InputModes::IXON | InputModes::ICRNL | InputModes::INLCR | InputModes::IGNCR);
            tcsetattr(&stdin, OptionalActions::Now, &keys).map_err(failed)?;
            before = Some(modes);
        }
        let read = move || {
            let mut bytes = [0; 1024];
            // Nothing means that no more will come, and is passed on as such.
            while let Ok(count) = std::io::stdin().read(&mut bytes) {
                if events.send(Event::Typed(bytes[..count].to_vec())).is_err() || count == 0 {
                    return;
                }
            }
        };
        // Nobody can wake a thread that waits for a key: it ends with the process.
        std::thread::Builder::new()
            .name("corro-keyboard".into())
            .spawn(read)
            .map_err(|e| Error::io("starting a thread", e))?;
        Ok(Self(before))
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

/// The size of the terminal that the user looks at; the usual one where there is none.
pub(crate) fn window() -> Window {
    match tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => Window { rows: size.ws_row, columns: size.ws_col },
        _ => Window { rows: 24, columns: 80 },
    }
}
