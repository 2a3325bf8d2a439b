"""LSTM, GRU and RNN as one kernel each: the loop over steps is inside it."""
