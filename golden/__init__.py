"""Two commits run the same cases on this machine; what differs in their outputs is printed (`make golden`)."""
