"""What each gate demands, as predicates over what a leg left behind. No input or output here."""
