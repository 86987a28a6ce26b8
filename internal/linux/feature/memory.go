package feature

var memoryFeatures = []Feature{}
