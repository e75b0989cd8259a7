// The one place that says where Catch2 (2.13) is.
#pragma once
#include <catch2/catch.hpp>
