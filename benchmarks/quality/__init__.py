"""The tables of the papers, measured again. Each command stores every finished cell and writes the page."""
