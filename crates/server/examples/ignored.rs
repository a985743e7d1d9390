//! Prints `docs/ignored.md`: what requests may ask for and the server leaves out or ignores.

fn main() {
    print!("{}", realizar_server::ignored::document());
}
