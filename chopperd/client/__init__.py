"""Client of this node's agent: its addresses, requests, and answers as typed values."""
