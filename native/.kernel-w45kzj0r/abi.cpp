extern "C" __attribute__((visibility("default"))) const char samovar_abi[] = "71b2d660ee55d5d25bc6dcf9b617bf32cb0c5b9f1fcc3bc91fc017ed4f8c3173";
