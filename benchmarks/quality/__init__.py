"""The tables of the papers, measured again: each command stores every finished cell and draws the page from them."""
