"""Bronze and silver -> the tables that a person reads, and the page that shows them."""
